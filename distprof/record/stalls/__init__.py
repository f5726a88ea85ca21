"""Where a rank stands when it waits for too long, or has died."""
