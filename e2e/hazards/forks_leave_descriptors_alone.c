/* Forks of a program that has many files open and more and more memory, up to its frames: the library writes to
 * none of these files, whatever their numbers. */
#include "hazard.h"

#define FILES 60

int main(void)
{
    int files[FILES];
    for (int n = 0; n < FILES; n++) {
        files[n] = memfd_create("file", MFD_CLOEXEC);
        CHECK(files[n] >= 0);
    }
    for (int round = 0; round < 24; round++) {
        size_t bytes = (round % 12 + 1) * MB / 2;
        char *p = map_private(bytes);
        memset(p, 1, bytes);
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        /* Its pages may not fit into the frames beside their parent's. */
        CHECK(child > 0 || errno == EAGAIN);
        CHECK(child < 0 || waitpid(child, NULL, 0) == child);
        for (int n = 0; n < FILES; n++) {
            struct stat file;
            CHECK(fstat(files[n], &file) == 0 && file.st_size == 0);
        }
        CHECK(munmap(p, bytes) == 0);
    }
    puts("no file was written");
    return 0;
}
