/* A file system whose server answers a read late, and straight into the reader's pages: those
 * must not leave meanwhile. No O_DIRECT is anywhere to be seen.
 *
 * With "mount FOLDER COMMAND..." it runs a command with the file system in place, with
 * "read FOLDER" it reads from one. With "late FOLDER COMMAND..." the command begins before
 * that: its first line of output has the file system mounted, and its end ends it. */
#include "fuse.h"

/* Runs a command; mounts the file system when the command prints a line, and answers it. */
static int mount_late(const char *folder, char **command)
{
    int words[2], answers[2], status;
    char byte;
    CHECK(pipe(words) == 0 && pipe(answers) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(dup2(answers[0], 0) == 0 && dup2(words[1], 1) == 1);
        close(answers[1]), close(words[0]);
        execv(command[0], command);
        fail_at(__FILE__, __LINE__, command[0]);
    }
    close(words[1]), close(answers[0]);
    CHECK(read(words[0], &byte, 1) == 1);
    CHECK(fuse_mount(folder) && write(answers[1], "\n", 1) == 1);
    CHECK(waitpid(child, &status, 0) == child);
    return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    alarm(100);
    if (argc == 3 && !strcmp(argv[1], "read"))
        return fuse_check(argv[2]), 0;
    char made[] = "mount-XXXXXX";
    const char *folder = argc > 3 ? argv[2] : mkdtemp(made);
    CHECK(folder);
    int alone = fuse_alone();
    if (alone && argc > 3 && !strcmp(argv[1], "late"))
        return mount_late(folder, argv + 3);
    pid_t server = alone ? fuse_mount(folder) : 0;
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
