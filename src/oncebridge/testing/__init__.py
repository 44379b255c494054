"""For those who write ledgers, and for tests of what runs on them: a contract, clocks to move, faults on cue.

`ledger_contract` needs pytest; `clock` and `faults` need nothing.
"""
