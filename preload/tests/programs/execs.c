/* Every way to start a program, with environments that have nothing of the library's:
 * what is started has it all the same. Without an argument this program starts itself
 * in each way; with one it tells whether the library is there. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int loaded(void)
{
    static char line[1024];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "libselfpage_preload.so"))
            return 1;
    return 0;
}

static void start(int way, const char *me)
{
    char *const args[] = {(char *)me, "child", NULL};
    char *const none[] = {NULL};
    char *const other[] = {"LD_PRELOAD=libc.so.6", "A=b", NULL};
    const char *base = strrchr(me, '/') + 1;
    char *const based[] = {(char *)base, "child", NULL};
    pid_t pid;
    int status;
    switch (way) {
    case 0: execve(me, args, none); break;
    case 1: execve(me, args, other); break;
    case 2: execl(me, me, "child", NULL); break;
    case 3: execle(me, me, "child", NULL, none); break;
    case 4: execlp(base, base, "child", NULL); break;
    case 5: execv(me, args); break;
    case 6: execvp(base, based); break;
    case 7: execvpe(base, based, none); break;
    case 8: fexecve(open(me, O_RDONLY), args, none); break;
    case 9: execveat(AT_FDCWD, me, args, none, 0); break;
    case 10: syscall(SYS_execve, me, args, none); break;
    case 11: execve(me, args, NULL); break;
    case 12:
    case 13:
        if ((way == 12 ? posix_spawn(&pid, me, NULL, NULL, args, none)
                       : posix_spawnp(&pid, base, NULL, NULL, based, other)) != 0)
            break;
        waitpid(pid, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
    case 14: {
        char script[64];
        snprintf(script, sizeof script, "exec \"$0\" child");
        execl("/bin/sh", "sh", "-c", script, me, NULL);
        break;
    }
    }
    dprintf(2, "way %d: errno %d\n", way, errno);
    _exit(98);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        if (!strcmp(argv[1], "child"))
            return loaded() ? 42 : 41;
        return 97;
    }
    char me[4096];
    me[readlink("/proc/self/exe", me, sizeof me - 1)] = 0;
    char *slash = strrchr(me, '/');
    *slash = 0;
    setenv("PATH", me, 1);
    *slash = '/';
    for (int by_vfork = 0; by_vfork < 2; by_vfork++)
        for (int way = 0; way <= 14; way++) {
            if (by_vfork && (way == 12 || way == 13))
                continue;
            /* The environment itself may be bare, too. */
            char *none[] = {NULL}, **kept = environ;
            char path[5000];
            snprintf(path, sizeof path, "PATH=%s", getenv("PATH"));
            char *bare[] = {path, NULL};
            environ = way == 2 || way == 5 ? none : bare;
            pid_t pid = by_vfork ? vfork() : fork();
            if (pid == 0)
                start(way, me);
            environ = kept;
            int status;
            if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 42) {
                dprintf(2, "way %d (vfork %d): status %x\n", way, by_vfork, status);
                return 1;
            }
        }
    errno = 0;
    if (execvp("no-such-program-at-all", argv) != -1 || errno != ENOENT)
        return 2;
    if (execve("/proc/self/exe/x", argv, environ) != -1 || errno != ENOTDIR)
        return 3;
    if (execvp("/etc/passwd", argv) != -1 || errno != EACCES)
        return 4;
    return 0;
}
