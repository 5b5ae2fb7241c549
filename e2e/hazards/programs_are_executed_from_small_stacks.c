/* Programs are executed from threads and contexts with stacks of a few pages, from another folder,
 * with more arguments than fit there, and with addresses where nothing is. */
#include "hazard.h"
#include <ucontext.h>

extern char **environ;
static char folder[] = "/tmp/selfpage-hazard-XXXXXX";
static char *script, *program;

static void *execute(void *unused)
{
    char *arguments[] = { "true", NULL };
    execve("/bin/true", arguments, environ);
    return unused;
}
static void *execute_along_path(void *unused)
{
    execlp("true", "true", (char *)NULL);
    return unused;
}
static void *spawn(void *unused)
{
    char *arguments[] = { "true", NULL };
    pid_t child;
    int status;
    CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return unused;
}
static char *variables[1001];

static void *spawn_with_many_variables(void *unused)
{
    char *arguments[] = { "true", NULL };
    pid_t child;
    int status;
    CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, variables) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return unused;
}
static void *run_shell(void *unused)
{
    CHECK(system("true") == 0);
    return unused;
}

static void *(*entry)(void *);
static void enter(void) { entry(NULL); }

static char *stack_of(size_t bytes)
{
    char *memory = mmap(NULL, bytes + 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && mprotect(memory, 16 * PAGE, PROT_NONE) == 0);
    return memory + 16 * PAGE;
}

static void child_ends_well(void)
{
    int status;
    CHECK(wait(&status) > 0 && status == 0);
}

static void on_thread(void *(*start)(void *))
{
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstack(&attributes, stack_of(PTHREAD_STACK_MIN), PTHREAD_STACK_MIN) == 0);
    if (fork() == 0) {
        CHECK(pthread_create(&thread, &attributes, start, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        _exit(0);
    }
    child_ends_well();
}

static void on_context(void *(*start)(void *))
{
    if (fork() == 0) {
        ucontext_t back, there;
        CHECK(getcontext(&there) == 0);
        there.uc_stack.ss_size = 2 * PAGE;
        there.uc_stack.ss_sp = stack_of(2 * PAGE);
        there.uc_link = &back;
        entry = start;
        makecontext(&there, enter, 0);
        CHECK(swapcontext(&back, &there) == 0);
        _exit(0);
    }
    child_ends_well();
}

static void with_many_arguments(void)
{
    enum { MANY = 5000 };
    static char *arguments[MANY + 1];
    for (int n = 0; n < MANY; n++)
        arguments[n] = "a";
    if (fork() == 0) {
        execvp(script, arguments);
        _exit(3);
    }
    child_ends_well();
}

static void from_another_folder(void)
{
    posix_spawn_file_actions_t actions;
    char *arguments[] = { "program", NULL };
    pid_t child;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_addchdir_np(&actions, folder) == 0);
    CHECK(posix_spawn(&child, "./program", &actions, NULL, arguments, environ) == 0);
    child_ends_well();
}

static void with_addresses_of_nothing(void)
{
    char *nothing = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *arguments[] = { "true", NULL }, *entries[] = { "A=1", nothing, NULL };
    char **volatile none = (char **)16;
    pid_t child;
    errno = 0;
    CHECK(execve(nothing, arguments, environ) == -1 && errno == EFAULT);
    CHECK(execve("/bin/true", arguments, none) == -1 && errno == EFAULT);
    CHECK(execve("/bin/true", arguments, entries) == -1 && errno == EFAULT);
    CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, entries) == EFAULT);
}

int main(void)
{
    CHECK(mkdtemp(folder) != NULL);
    CHECK(asprintf(&script, "%s/script", folder) > 0 && asprintf(&program, "%s/program", folder) > 0);
    FILE *file = fopen(script, "w");
    CHECK(file && fputs("test $# = 4999\n", file) >= 0 && fchmod(fileno(file), 0755) == 0 && fclose(file) == 0);
    CHECK(symlink("/bin/true", program) == 0);
    on_thread(execute);
    on_thread(execute_along_path);
    on_thread(spawn);
    on_thread(run_shell);
    for (int n = 0; n < 1000; n++)
        CHECK(asprintf(&variables[n], "V%d=x", n) > 0);
    on_thread(spawn_with_many_variables);
    on_context(execute);
    on_context(execute_along_path);
    with_many_arguments();
    from_another_folder();
    with_addresses_of_nothing();
    CHECK(unlink(script) == 0 && unlink(program) == 0 && rmdir(folder) == 0);
    puts("executed");
    return 0;
}
