/* As hundreds_of_threads_fault_at_once, but more threads wait for the disk than the pager has reads under way. */
/* selfpage run --store disk */
#include "hundreds_of_threads_fault_at_once.c"
