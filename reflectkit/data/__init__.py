"""From demonstrations to training rows: records, splits and the five SFT files."""
