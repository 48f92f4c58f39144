"""``make demo``: the pipeline processes days with late rows automatically; this is measured and checked."""
