"""What weights leave behind: their mean over a window, the trail of such means, a snapshot to return to.
It imports replicas, through which a mean is shared, and no other room."""
