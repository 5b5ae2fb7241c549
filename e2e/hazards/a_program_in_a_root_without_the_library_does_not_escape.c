/* A program that is executed after `chroot` cannot load the library: it is refused, and does not run outside its
 * contract; a path without a file is still ENOENT. By execve, execvp and posix_spawn alike. */
#include "hazard.h"

static void copy_into(const char *folder, const char *file)
{
    char command[4 * PATH_MAX];
    snprintf(command, sizeof command, "mkdir -p %s$(dirname %s) && cp -L %s %s%s", folder, file, file, folder, file);
    CHECK(system(command) == 0);
}

/* The program and the libraries that it needs, below the folder. */
static void fill_root(const char *folder, const char *program)
{
    char line[PATH_MAX], command[PATH_MAX + 64];
    copy_into(folder, program);
    snprintf(command, sizeof command, "ldd %s | grep -o '/[^ ]*' | grep -v selfpage", program);
    FILE *needed = popen(command, "r");
    CHECK(needed);
    while (fgets(line, sizeof line, needed)) {
        line[strcspn(line, "\n")] = 0;
        copy_into(folder, line);
    }
    CHECK(pclose(needed) == 0);
}

/* Exits with 0 where the program is refused, 1 where it runs. */
static void execute(const char *program, int how)
{
    char *args[] = {(char *)program, "inside", NULL}, *missing[] = {"/missing", NULL};
    pid_t child;
    if (how == 2) {
        CHECK(posix_spawn(&child, missing[0], NULL, NULL, missing, environ) == ENOENT);
        int refused = posix_spawn(&child, program, NULL, NULL, args, environ);
        CHECK(refused == 0 || refused == EACCES);
        if (refused == 0)
            CHECK(waitpid(child, NULL, 0) == child);
        _exit(refused ? 0 : 1);
    }
    CHECK(execv(missing[0], missing) == -1 && errno == ENOENT);
    how ? execvp(program, args) : execv(program, args);
    CHECK(errno == EACCES);
    _exit(0);
}

int main(int count, char **arguments)
{
    if (count > 1)
        return 1;
    if (geteuid() != 0) {
        fprintf(stderr, "chroot needs root\n");
        return 77;
    }
    char folder[] = "/tmp/root.XXXXXX", program[PATH_MAX], command[64];
    CHECK(mkdtemp(folder) && realpath(arguments[0], program));
    fill_root(folder, program);
    for (int how = 0; how < 3; how++) {
        pid_t child = checked_fork();
        if (child == 0) {
            CHECK(chroot(folder) == 0 && chdir("/") == 0);
            execute(program, how);
        }
        int status = end_of(child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == (paged() ? 0 : 1));
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(system(command) == 0);
    return 0;
}
