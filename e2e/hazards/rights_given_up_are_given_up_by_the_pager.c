/* What shares the memory of a program that has given up its rights has none of them either: the
 * threads of the program, and its pager. */
#include "hazard.h"
#include <dirent.h>
#include <grp.h>

static void give_up(void)
{
    CHECK(setgroups(0, NULL) == 0);
    CHECK(chroot("/proc") == 0 && chdir("/") == 0);
    CHECK(setresgid(1000, 1000, 1000) == 0);
    CHECK(setresuid(1000, 1000, 1000) == 0);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog filter = {1, allow};
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0);
}

/* A whole file, as text. */
static char *slurp(const char *pid, const char *name)
{
    char path[300];
    static char text[2][1 << 20];
    static int turn;
    char *to = text[turn ^= 1];
    snprintf(path, sizeof path, "/proc/%s/%s", pid, name);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return NULL;
    size_t len = 0;
    for (ssize_t n; len < sizeof text[0] - 1 && (n = read(fd, to + len, sizeof text[0] - 1 - len)) > 0;)
        len += n;
    close(fd);
    to[len] = 0;
    return to;
}

static unsigned long field(const char *status, const char *name, int base)
{
    const char *at = strstr(status, name);
    CHECK(at);
    return strtoul(at + strlen(name), NULL, base);
}

/* Checks every process that shares the child's memory. */
static int look(pid_t child)
{
    char of_child[32];
    snprintf(of_child, sizeof of_child, "%d", (int)child);
    DIR *proc = opendir("/proc");
    CHECK(proc);
    int found = 0;
    for (struct dirent *entry; (entry = readdir(proc));) {
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
            continue;
        char *comm = slurp(entry->d_name, "comm");
        int pager = comm && strncmp(comm, "selfpage-pager", 14) == 0;
        if (!pager && strcmp(entry->d_name, of_child))
            continue;
        char *maps = slurp(entry->d_name, "maps");
        char *same = slurp(of_child, "maps");
        if (!maps || !same || strcmp(maps, same))
            continue;
        char *status = slurp(entry->d_name, "status");
        CHECK(status);
        CHECK(field(status, "Uid:\t", 10) != 0 && field(status, "Gid:\t", 10) != 0);
        CHECK(field(status, "CapPrm:\t", 16) == 0 && field(status, "CapEff:\t", 16) == 0);
        CHECK(field(status, "CapInh:\t", 16) == 0 && field(status, "CapAmb:\t", 16) == 0);
        CHECK(field(status, "NoNewPrivs:\t", 10) == 1 && field(status, "Seccomp:\t", 10) == 2);
        CHECK(strstr(status, "Groups:\t \n"));
        found++;
    }
    closedir(proc);
    return found;
}

int main(void)
{
    if (getuid() != 0) {
        fprintf(stderr, "only root has rights to give up\n");
        return 77;
    }
    char *p = map_private(hazard_bytes());
    fill(p, hazard_bytes(), 1);
    int ready[2], done[2];
    char byte = 0;
    CHECK(pipe(ready) == 0 && pipe(done) == 0);
    pid_t child = checked_fork();
    if (child == 0) {
        give_up();
        CHECK(holds(p, hazard_bytes(), 1));
        CHECK(write(ready[1], &byte, 1) == 1);
        CHECK(read(done[0], &byte, 1) == 1);
        CHECK(holds(p, hazard_bytes(), 1));
        _exit(0);
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    /* The map of the memory changes while it is looked at. */
    int found = look(child);
    for (int i = 0; i < 100 && found != 1 + paged(); i++, nap(20))
        found = look(child);
    CHECK(found == 1 + paged());
    CHECK(write(done[1], &byte, 1) == 1);
    reap(child);
    return 0;
}
