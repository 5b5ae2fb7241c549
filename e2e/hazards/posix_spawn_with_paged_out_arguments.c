/* posix_spawn shares the parent's memory with the child until exec; its arguments,
 * attributes and file actions may be paged out. Spawned from several threads at once. */
#include "hazard.h"

extern char **environ;
static char *self;

static void *spawner(void *arg)
{
    (void)arg;
    for (int i = 0; i < 12; i++) {
        posix_spawn_file_actions_t *actions = malloc(sizeof *actions);
        posix_spawnattr_t *attributes = malloc(sizeof *attributes);
        char *text = malloc(100001), **args = calloc(4, sizeof *args);
        memset(text, 'a' + i, 100000);
        text[100000] = 0;
        args[0] = self, args[1] = strdup("child"), args[2] = text;
        int out[2];
        CHECK(pipe2(out, O_CLOEXEC) == 0);
        CHECK(posix_spawn_file_actions_init(actions) == 0);
        CHECK(posix_spawn_file_actions_adddup2(actions, out[1], 1) == 0);
        CHECK(posix_spawnattr_init(attributes) == 0);
        sigset_t none;
        sigemptyset(&none);
        posix_spawnattr_setsigmask(attributes, &none);
        posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK);
        if (i % 4 == 0)
            push_out();
        pid_t child;
        CHECK(posix_spawn(&child, "/proc/self/exe", actions, attributes, args, environ) == 0);
        close(out[1]);
        char *answer = calloc(1, 64);
        CHECK(read(out[0], answer, 63) == 7 && strcmp(answer, "spawned") == 0);
        close(out[0]);
        reap(child);
        posix_spawn_file_actions_destroy(actions);
        CHECK(posix_spawn(&child, "/no/such/program", NULL, NULL, args, environ) == ENOENT);
        free(text);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        CHECK(strlen(argv[2]) == 100000);
        char *p = malloc(4 * MB);
        fill(p, 4 * MB, 1);
        CHECK(holds(p, 4 * MB, 1));
        CHECK(write(1, "spawned", 7) == 7);
        return 0;
    }
    self = argv[0];
    struct churn churn[1];
    pthread_t t[2];
    churn_start(churn, 1);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&t[i], NULL, spawner, NULL) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    churn_stop(churn, 1);
    return 0;
}
