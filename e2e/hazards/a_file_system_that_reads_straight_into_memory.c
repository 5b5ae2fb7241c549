/* A file system whose server answers a read late, and straight into the reader's pages: those
 * must not leave meanwhile. No O_DIRECT is anywhere to be seen.
 *
 * With "mount FOLDER COMMAND..." it runs a command with the file system in place, with
 * "read FOLDER" it reads from one. */
#include "fuse.h"

int main(int argc, char **argv)
{
    alarm(100);
    if (argc == 3 && !strcmp(argv[1], "read"))
        return fuse_check(argv[2]), 0;
    char made[] = "mount-XXXXXX";
    const char *folder = argc > 3 ? argv[2] : mkdtemp(made);
    CHECK(folder);
    pid_t server = fuse_mount(folder);
    if (!server) {
        fprintf(stderr, "a file system of one's own needs /dev/fuse and privilege (errno %d)\n", errno);
        if (argc == 1)
            rmdir(folder);
        return 77;
    }
    if (argc > 3) {
        execv(argv[3], argv + 3);
        fail_at(__FILE__, __LINE__, argv[3]);
    }
    fuse_check(folder);
    CHECK(umount(folder) == 0 && rmdir(folder) == 0);
    reap(server);
    return 0;
}
