/* The start of a program, and of one that a child executes anew. */

/* program PROGRAM LOG [PATH PART]: without a log, to standard output. */
UNUSED static void begin_program(int count, char **words)
{
    for (int i = 0; i < 3; i++)
        program_words[i] = i < count ? words[i] : "-";
    if (fcntl(LOG_FD, F_GETFD) < 0) {
        int log = strcmp(program_words[2], "-") ? open(program_words[2], O_WRONLY | O_CREAT | O_APPEND, 0600) : 1;
        if (dup2(log, LOG_FD) < 0)
            _exit(2);
    }
    if (count > 3)
        snprintf(log_path, sizeof log_path, "%s", words[3]);
    catch_faults();
    make_files();
}
