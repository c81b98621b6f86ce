"""Speed against other toolkits: the same episodes, played and learnt by both sides in turns in one process."""
