"""A job under Nsight Systems: started without secrets, its report judged by the file, exported and shown."""
