"""Writes one version of a store as a safetensors file, without weightstore.

    python independent_reader.py STORE latest|NUMBER OUTPUT

It needs numpy, zstandard, safetensors and the standard library. What does not fit ends it with an
exception before the output is written; reading-without-weightstore.md goes through it.
"""

import hashlib
import io
import json
import pathlib
import struct
import sys

import numpy as np
import safetensors
import zstandard

WIDE = {"<u2": "I16 U16 F16 BF16", "<u4": "I32 U32 F32", "<u8": "I64 U64 F64 C64"}
UNIT = {dtype: unit for unit, dtypes in WIDE.items() for dtype in dtypes.split()}  # others: u1

LANES = (0x9E3779B97F4A7C15, 0x243F6A8885A308D3), (0xD1342543DE82EF95, 0x13198A2E03707344)


def check(is_right, what):
    if not is_right:
        raise ValueError(f"{what} is not what the format says")


def fetch(store, key, size_bytes, sha256):
    """An object, as whatever names it says."""
    data = (store / key).read_bytes()
    check((len(data), hashlib.sha256(data).hexdigest()) == (size_bytes, sha256), key)
    return data


def read_log(store):
    """The version records that count, by number: the next record knows them as the newest."""
    form, records, parent = json.loads((store / "FORMAT").read_bytes()), [], "0" * 64
    check((form["magic"], form["format"]) == ("weightstore", 1), "FORMAT")
    while (path := store / f"log/{len(records):020}").exists():
        records.append(json.loads(data := path.read_bytes()))
        check(records[-1]["parent_sha256"] == parent, path)
        parent = hashlib.sha256(data).hexdigest()
    known = [each["now"]["newest"] or {"slot": 0} for each in records[1:]] + records[-1:]
    pairs = [(each, newest["slot"]) for each, newest in zip(records, known, strict=True)]
    return {
        each["version"]: each
        for each, slot in pairs
        if each["kind"] == "version" and each["slot"] == slot
    }


def read_full(store, full):
    """The tensors of a full form as flat arrays of units, every block checked."""
    weights, blocks = {}, fetch(store, **full["blocks"])
    size_bytes, file_count = struct.unpack_from("<QQ", blocks, 8)
    hashes = io.BytesIO(blocks[24 + 8 * file_count :])
    for file in full["files"]:
        data = (store / "anchors" / full["anchor_id"] / file["name"]).read_bytes()
        check(len(data) == file["size_bytes"], file["name"])
        for at in range(0, len(data), size_bytes):
            block_hash = hashlib.sha256(data[at : at + size_bytes]).digest()
            check(block_hash == hashes.read(32), file["name"])
        for name, found in safetensors.deserialize(data) if file["role"] == "weights" else ():
            weights[name] = np.frombuffer(found["data"], UNIT.get(found["dtype"], "u1"))
    return weights


def make_bundles(tensors, weights):
    """Small tensors of a dtype in one array, of which they become views."""
    members, opened = [], {}
    for name, dtype, _ in tensors:
        if 0 < (size := weights[name].size) < 65_536:
            units, names = opened.get(dtype, (8_388_608, []))
            if units + size > 8_388_608 or len(names) == 65_536:
                units, names = 0, []
                members.append(names)
            names.append(name)
            opened[dtype] = units + size, names
    bundles = [np.concatenate([weights[name] for name in names]) for names in members]
    for names, bundle in zip(members, bundles, strict=True):
        ends = np.cumsum([weights[name].size for name in names])
        weights.update(zip(names, np.split(bundle, ends[:-1]), strict=True))
    return bundles


def planes(data, width):
    """Words whose lowest bytes come first, then all second ones, and so on."""
    return np.frombuffer(data, "u1").reshape(width, -1).T.copy().view(f"<u{width}").ravel()


def signed(zigzag):
    return (zigzag >> 1) ^ -(zigzag & 1)


def decode(unit_count, changed_count, width, coding, gap_coding, gaps, values, escapes, wide):
    """Which units of a piece change, how, and by what."""
    positions = np.arange(unit_count)
    if gap_coding:  # its number is the width of a gap
        steps = planes(gaps, gap_coding).astype(np.int64)
        ends = steps != 256**gap_coding - 1  # the largest gap is a skip, which changes nothing
        positions = np.cumsum(steps + ends)[ends] - 1
    if coding:
        how = {1: np.bitwise_xor, 3: np.add}.get(coding, lambda _, new: new)
        words = planes(values, width)
        return positions, how, signed(words) if coding == 3 else words
    codes = (np.frombuffer(values, "u1")[:, None] >> np.arange(0, 8, 2) & 3).ravel()[:changed_count]
    words = np.array([1, -1, 0])[codes].astype(f"<u{width}")
    escaped = np.frombuffer(escapes, "u1").astype(words.dtype)
    differences = signed(escaped)
    differences[escaped == 255] = np.frombuffer(wide, words.dtype)
    words[codes == 2] = differences
    return positions, np.add, words


def apply_pack(pack, tensors, weights, bundles):
    """Change the units that the pieces of a pack name."""
    parts = {name: found["data"] for name, found in safetensors.deserialize(pack)}
    areas = [io.BytesIO(parts[name]) for name in ("gaps", "values", "escapes", "words")]
    rows_end = 56 + 88 * int.from_bytes(parts["index"][40:44], "little")
    box_words = io.BytesIO(parts["index"][rows_end:])
    for row in struct.iter_unpack("<3Q16s11I4B", parts["index"][56:rows_end]):
        first, hash16, sizes, number, kind = row[0], row[3], row[8:12], row[12], row[15]
        stored = [area.read(size) for area, size in zip(areas, sizes, strict=True)]
        check(hashlib.sha256(b"".join(stored)).digest()[:16] == hash16, "a piece")
        streams = [each and zstandard.decompress(each) for each in stored]
        at, how, words = decode(*row[13:15], *row[16:19], *streams)
        target, at = bundles[number] if kind == 2 else weights[tensors[number][0]], at + first
        if kind == 1:  # positions count within a box
            shape = tensors[number][2][:-1] + [-1]
            offsets, counts = np.frombuffer(box_words.read(16 * len(shape)), "<i8").reshape(2, -1)
            box = tuple(map(slice, offsets, offsets + counts))
            at = np.arange(target.size).reshape(shape)[box].ravel()[at]
        target[at] = how(target[at], words)


def mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


def state_digest(tensors, weights):
    """The hash over names, dtypes, shapes and two lanes of each tensor."""
    names, lanes = [b"weightstore-state-1\n", struct.pack("<Q", len(tensors))], []
    for name, dtype, shape in tensors:
        names += [struct.pack("<H", len(name.encode())), name.encode()]
        names += [struct.pack("<B", len(dtype)), dtype.encode()]
        names += [struct.pack(f"<B{len(shape)}Q", len(shape), *shape)]
        units, index = weights[name].astype("<u8"), np.arange(weights[name].size, dtype="<u8")
        lanes += [mix(units ^ mix(index * c + k)).sum(dtype="<u8").tobytes() for c, k in LANES]
    return hashlib.sha256(b"".join(names + lanes)).hexdigest()


def read_version(store, selector):
    """The schema of a version, and the units of each of its tensors by name."""
    versions, chain = read_log(store), []
    record = versions[max(versions) if selector == "latest" else int(selector)]
    while not chain or not chain[-1]["full"]:
        key = "manifests/{run}-{epoch}/{version}-{commit_id}".format(**record)
        manifest = fetch(store, key, record["manifest_size_bytes"], record["manifest_sha256"])
        chain.append(json.loads(manifest))
        record = versions[(chain[-1]["base"] or record)["version"]]
    schema = json.loads(fetch(store, **chain[0]["schema_ref"]))
    weights = read_full(store, chain[-1]["full"])
    bundles = make_bundles(schema["tensors"], weights)
    for manifest in chain[-2::-1]:
        for pack in manifest["delta"]["packs"]:
            data = fetch(store, pack["key"], pack["size_bytes"], pack["sha256"])
            apply_pack(data, schema["tensors"], weights, bundles)
    check(state_digest(schema["tensors"], weights) == chain[0]["digest"], "the state")
    return schema, weights


def write_file(path, schema, weights):
    """A safetensors file; names that share storage hold copies."""
    specs = {name: (name, dtype, shape) for name, dtype, shape in schema["tensors"]}
    specs |= {name: specs[target] for name, target in schema["aliases"]}
    header, end = {}, 0
    for name, (target, dtype, shape) in sorted(specs.items()):
        begin, end = end, end + weights[target].nbytes
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    data = [weights[specs[name][0]].tobytes() for name in header]
    pathlib.Path(path).write_bytes(b"".join([struct.pack("<Q", len(text)), text, *data]))


if __name__ == "__main__":
    write_file(sys.argv[3], *read_version(pathlib.Path(sys.argv[1]), sys.argv[2]))
