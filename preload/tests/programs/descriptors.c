/* The program's descriptors are its own: none of the pager's among them, none of them
 * held open elsewhere. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir)); count++)
        ;
    closedir(dir);
    /* The same number as without the library. */
    printf("%d\n", count);
    fflush(stdout);
    /* The end of a pipe comes when the program closes its only writer. */
    int ends[2];
    char byte;
    if (pipe(ends) != 0)
        return 2;
    close(ends[1]);
    if (read(ends[0], &byte, 1) != 0)
        return 3;
    close(ends[0]);
    if (close_range(3, ~0u, 0) != 0 || dup2(1, 50) != 50)
        return 4;
    closefrom(3);
    return fcntl(50, F_GETFD) == -1 ? 0 : 5;
}
