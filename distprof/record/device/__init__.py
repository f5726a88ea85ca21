"""What is known of a rank's device, and how it is asked."""
