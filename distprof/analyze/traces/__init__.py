"""What traces say of a job: device time, kernels, ranges, modules, and the findings."""
