"""`pdserve drill alerts`: what alerts are for happens to a cluster, and each must fire and clear."""
