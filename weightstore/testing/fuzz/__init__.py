"""Fuzzing of everything that parses stored bytes: `python -m weightstore.testing.fuzz`.

`decoders.all_decoders` is the table of the decoders, each with inputs made by the real
encoders; `mutating.Mutator` damages those inputs, the same way for the same seed; and
`campaign.run` feeds them in and judges what comes out.
"""
