"""The router: prefill/decode pairing, affinity, a bounded ready queue, cancel and resume."""
