"""sft in four steps, as rlft has: settings and rows → `SFTRun` → `Training` → `SFTFit` → report."""
