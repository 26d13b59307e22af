"""One run: play it, record it, measure it, summarise it, resume it, take in new clients; and its folder."""
