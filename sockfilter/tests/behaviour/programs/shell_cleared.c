/* A program that cleared its environment starts others by system and popen; these are passed a connection. */
#include "passed.h"

enum { AT = 20 };
static char self[256], command[600];
extern char **environ;

static void print(FILE *from) {
    char line[200];
    while (fgets(line, sizeof line, from)) printf("popen: %s", line);
    fflush(stdout);
}

/* Starts the program; it says what it does. */
static void start(int way) {
    snprintf(command, sizeof command, "echo 'it'\\''s' \"$0\" $#; '%s' serve", self);
    FILE *stream;
    if (way == 0) TRY(system(command));
    if (way == 1) {
        stream = popen(command, "r");
        print(stream);
        TRY(pclose(stream));
    }
    if (way == 2) {
        stream = popen(command, "we");
        TRY(pclose(stream));
    }
    TRY(environ == NULL || *environ == NULL);
}

static void pass(int s, int to) {
    struct ends e = ends_at(s);
    descriptor(to, e.server);
    close(e.server);
    char byte = 'x';
    MUST(send(e.client, &byte, 1, 0));
    long got = recv(e.client, &byte, 1, 0);
    wait(NULL);
    TRY(got);
    close(e.client);
}

int main(int count, char **arguments) {
    if (count > 1) return serve(AT);
    MUST(readlink("/proc/self/exe", self, sizeof self - 1));
    int s = listener(), pair[2];
    MUST(fcntl(s, F_SETFD, FD_CLOEXEC));
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    for (int way = 0; way < 3; way++) {
        pid_t child = MUST(fork());
        if (child == 0) {
            MUST(dup2(pair[1], AT));
            clearenv();
            start(way);
            return 0;
        }
        pass(s, pair[0]);
    }
    /* Results of the shell, and calls that start nothing. */
    clearenv();
    TRY(system("exit 7"));
    TRY(system("kill -9 $$"));
    TRY(system("no-such-program 2>&-"));
    TRY(system(""));
    TRY(system(NULL) != 0);
    TRY(popen("true", "?") != NULL);
    TRY(pclose(popen("exit 3", "r")));
}
