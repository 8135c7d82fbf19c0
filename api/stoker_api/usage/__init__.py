"""What jobs have had of GPUs: exporters' receipts kept, summed by hour, shown by job, user, queue and more."""
