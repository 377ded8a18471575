"""Keys that are easy to get wrong."""

from __future__ import annotations

REFUSED_KEYS = (
    "",
    "/",
    "/etc/passwd",
    "log/",
    "log//1",
    "..",
    "../log",
    "log/../FORMAT",
    "log/.",
    "./log",
    "log/\0",
    "log/a b",
    "log/\n1",
    "log/1\n",
    "log/é",
    "log\\1",
    "C:/x",
    "log/" + "a" * 256,
    "a/" * 8 + "a",
    "log/~tmp-1",
    "~tmp-1/x",
    "locks/" + "0" * 32,
    "index",
    "index/data.mdb",
    "anchors/a/..",
    "anchors/a/",
    "anchors/a/\0",
    "anchors/a/~tmp-1",
    "anchors/a b/x",
    "anchors/a/\udc80",
    "anchors/a/" + "é" * 128,
)
"""Keys that no store takes."""

REFUSED_PREFIXES = ("/", "/etc/", "../", "log/../", "a//", "\0", "é/", "./")
"""Starts of no key."""

STRANGE_KEYS = (
    "packs/.run_1-0/...",
    "packs/...-1/1-1-0-x.safetensors",
    "a/" * 7 + "a",
    "log/" + "a" * 255,
    "anchors/a/model 1.safetensors",
    "anchors/a/é",
    "anchors/a/e\u0301",
    "anchors/a/new\nline",
    "anchors/a/CON",
    "anchors/a/a\\b",
    "anchors/a/" + "é" * 127,
)
"""Keys that every store takes and keeps apart."""
