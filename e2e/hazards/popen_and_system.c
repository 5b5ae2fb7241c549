/* Shells, pipes and small tools started from a program that pages, from several threads. */
#include "hazard.h"

static void *caller(void *arg)
{
    int id = (int)(uintptr_t)arg;
    for (int i = 0; i < 8; i++) {
        char command[200], line[200], want[200];
        snprintf(command, sizeof command, "echo a-%d-%d | sed s/a/b/ | cat | tr b c", id, i);
        snprintf(want, sizeof want, "c-%d-%d\n", id, i);
        FILE *p = popen(command, "r");
        CHECK(p);
        CHECK(fgets(line, sizeof line, p));
        CHECK(strcmp(line, want) == 0);
        CHECK(pclose(p) == 0);
        int status = system("exit 3");
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
        status = system("kill -TERM $$");
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    }
    return NULL;
}

int main(void)
{
    size_t n = hazard_bytes() / 2;
    char *p = map_private(n);
    fill(p, n, 1);
    struct churn churn[1];
    churn_start(churn, 1);
    pthread_t t[2];
    for (uintptr_t i = 0; i < 2; i++)
        CHECK(pthread_create(&t[i], NULL, caller, (void *)i) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    churn_stop(churn, 1);
    CHECK(holds(p, n, 1));
    return 0;
}
