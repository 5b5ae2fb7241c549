/* A plug-in's constructor waits for a thread, which makes its process's first call of a function that
 * needs no lock of the loader's: that has it until the constructor returns. */
#include "hazard.h"

extern char **environ;

static void receives(void)
{
    int ends[2];
    char byte = 1;
    struct iovec part = { &byte, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && write(ends[0], "x", 1) == 1);
    CHECK(recvmsg(ends[1], &message, 0) == 1 && byte == 'x');
}

static void spawns(void)
{
    pid_t child;
    char *arguments[] = { "true", NULL };
    CHECK(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0);
    reap(child);
}

static void asks_a_shell(void)
{
    FILE *shell = popen("true", "r");
    CHECK(shell != NULL && pclose(shell) == 0);
}

static void writes_back(void)
{
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED && msync(page, PAGE, MS_SYNC) == 0);
}

static void (*const calls[])(void) = { receives, spawns, asks_a_shell, writes_back };
static void (*call)(void);

static void *makes_the_call(void *arg)
{
    call();
    return arg;
}

/* The plug-in's constructor calls it. */
static void starts_a_thread(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, makes_the_call, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

int main(void)
{
    char folder[] = "plugins.XXXXXX", command[128], path[64];
    CHECK(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/plugin.so", folder);
    snprintf(command, sizeof command, "cc -shared -fPIC -x c -o %s -", path);
    int to_compiler[2];
    CHECK(pipe2(to_compiler, O_CLOEXEC) == 0);
    /* Each call is a child's first. */
    for (size_t n = 0; n <= sizeof calls / sizeof *calls; n++) {
        pid_t child = checked_fork();
        if (child > 0) {
            reap(child);
            continue;
        }
        if (n == 0) {
            FILE *compiler = popen(command, "w");
            CHECK(compiler);
            fputs("#include <stdlib.h>\n"
                  "__attribute__((constructor)) static void begin(void) {\n"
                  "    ((void (*)(void))strtoul(getenv(\"BEGIN\"), NULL, 16))();\n}\n", compiler);
            CHECK(pclose(compiler) == 0);
            _exit(0);
        }
        char at[32];
        snprintf(at, sizeof at, "%lx", (unsigned long)starts_a_thread);
        CHECK(setenv("BEGIN", at, 1) == 0);
        call = calls[n - 1];
        alarm(20);
        CHECK(dlopen(path, RTLD_NOW));
        _exit(0);
    }
    CHECK(unlink(path) == 0 && rmdir(folder) == 0);
    return 0;
}
