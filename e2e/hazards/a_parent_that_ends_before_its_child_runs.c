/* A process forks and exits, and is gone long before its child runs its first instruction. The
 * child has its memory all the same. */
#include "hazard.h"
#include <sys/ptrace.h>

#define ROUNDS 2
#define BYTES (2 * MB)

/* Forks, in a process that waits until it is traced. */
static void parent_of(const int *go, int answers, const char *memory)
{
    char word;
    CHECK(read(*go, &word, 1) == 1);
    pid_t child = checked_fork();
    if (child == 0) {
        char answer = holds(memory, BYTES, 5) ? 'y' : 'n';
        CHECK(write(answers, &answer, 1) == 1);
    }
    _exit(0);
}

static int wait_for(pid_t process)
{
    int status;
    pid_t got;
    do
        got = waitpid(process, &status, __WALL);
    while (got < 0 && errno == EINTR);
    CHECK(got == process);
    return status;
}

int main(void)
{
    char *memory = map_private(BYTES);
    fill(memory, BYTES, 5);
    push_out();
    for (int round = 0; round < ROUNDS; round++) {
        int go[2], answers[2];
        CHECK(pipe(go) == 0 && pipe(answers) == 0);
        pid_t parent = checked_fork();
        if (parent == 0)
            parent_of(go, answers[1], memory);
        close(answers[1]);
        if (ptrace(PTRACE_SEIZE, parent, NULL, PTRACE_O_TRACEFORK) != 0) {
            fprintf(stderr, "processes may not be traced\n");
            return 77;
        }
        CHECK(write(go[1], "g", 1) == 1);
        int status = wait_for(parent);
        CHECK(WIFSTOPPED(status) && status >> 16 == PTRACE_EVENT_FORK);
        unsigned long child;
        CHECK(ptrace(PTRACE_GETEVENTMSG, parent, NULL, &child) == 0);
        CHECK(WIFSTOPPED(wait_for(child)));
        CHECK(ptrace(PTRACE_CONT, parent, NULL, 0) == 0);
        CHECK(WIFEXITED(wait_for(parent)));
        nap(50);
        CHECK(ptrace(PTRACE_DETACH, child, NULL, 0) == 0);
        char answer = 0;
        CHECK(read(answers[0], &answer, 1) == 1);
        CHECK(answer == 'y');
        close(go[0]);
        close(go[1]);
        close(answers[0]);
    }
    return 0;
}
