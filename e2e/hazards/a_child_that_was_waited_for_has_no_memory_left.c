/* Once a parent has learned of a child's end, the file that the child executed can be written, shared memory is
 * attached once less, and a file that the child mapped can be sealed: however the parent waits. */
#include "hazard.h"
#include <sys/shm.h>

enum way { WAIT, WAITPID, WAIT3, WAIT4, WAITID, BY_NUMBER, ID_BY_NUMBER, UNREAPED, SYSTEM, POPEN, WAYS };

static char path[64];

static void await(enum way way, pid_t child)
{
    int status = 0;
    struct rusage usage;
    siginfo_t info;
    switch (way) {
    case WAIT: CHECK(wait(&status) == child); break;
    case WAITPID: CHECK(waitpid(child, NULL, 0) == child); break;
    case WAIT3: CHECK(wait3(&status, 0, &usage) == child); break;
    case WAIT4: CHECK(wait4(child, &status, 0, NULL) == child); break;
    case WAITID: CHECK(waitid(P_PID, child, &info, WEXITED) == 0 && info.si_pid == child); break;
    case BY_NUMBER: CHECK(syscall(SYS_wait4, child, NULL, 0, NULL) == child); break;
    case ID_BY_NUMBER: CHECK(syscall(SYS_waitid, P_PID, child, NULL, WEXITED, NULL) == 0); break;
    case UNREAPED: CHECK(waitid(P_PID, child, &info, WEXITED | WNOWAIT) == 0); break;
    default: CHECK(0);
    }
    CHECK(status == 0);
}

/* Opens the file that was executed before for a write. Any process of the machine that reads the child's files in /proc at
 * its end keeps the file busy, without us, too: once is no defect. */
static int open_executed(void)
{
    static int busy;
    int to;
    while ((to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755)) < 0 && errno == ETXTBSY) {
        CHECK(++busy == 1);
        usleep(100000);
    }
    return to;
}

/* Writes this program to the file, over what was executed before. */
static void write_program(void)
{
    static char bytes[1 << 16];
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int to = open_executed();
    CHECK(from >= 0);
    CHECK(to >= 0);
    for (ssize_t n; (n = read(from, bytes, sizeof bytes)) > 0;)
        CHECK(write(to, bytes, n) == n);
    CHECK(close(from) == 0 && close(to) == 0);
}

static void executed_files(void)
{
    char line[96];
    for (int round = 0; round < 8 * WAYS; round++) {
        enum way way = round % WAYS;
        write_program();
        snprintf(line, sizeof line, "exec %s child", path);
        if (way == SYSTEM) {
            CHECK(system(line) == 0);
            continue;
        }
        if (way == POPEN) {
            FILE *child = popen(line, "r");
            CHECK(child && pclose(child) == 0);
            continue;
        }
        pid_t child = checked_fork();
        if (child == 0) {
            execl(path, path, "child", NULL);
            _exit(1);
        }
        await(way, child);
        if (way == UNREAPED) {
            write_program();
            CHECK(waitpid(child, NULL, 0) == child);
        }
    }
}

static void shared_memory(void)
{
    for (int way = 0; way < UNREAPED; way++) {
        int id = shmget(IPC_PRIVATE, MB, IPC_CREAT | 0600);
        CHECK(id >= 0);
        char *at = shmat(id, NULL, 0);
        CHECK(at != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
        int file = memfd_create("sealed", MFD_ALLOW_SEALING);
        CHECK(file >= 0 && ftruncate(file, MB) == 0);
        pid_t child = checked_fork();
        if (child == 0) {
            char *map = mmap(NULL, MB, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (map == MAP_FAILED)
                _exit(1);
            map[0] = at[0] = 1;
            _exit(0);
        }
        await(way, child);
        struct shmid_ds state;
        CHECK(shmctl(id, IPC_STAT, &state) == 0);
        CHECK(state.shm_nattch == 1);
        CHECK(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE) == 0);
        CHECK(shmdt(at) == 0 && close(file) == 0);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "child") == 0) {
        char *p = map_private(MB);
        fill(p, MB, 1);
        return !holds(p, MB, 1);
    }
    snprintf(path, sizeof path, "/var/tmp/selfpage-executed-%d", (int)getpid());
    executed_files();
    CHECK(unlink(path) == 0);
    shared_memory();
    return 0;
}
