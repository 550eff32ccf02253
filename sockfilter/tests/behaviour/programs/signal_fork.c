/* A signal handler closes and dups a connection while the program forks: nothing waits for ever, no descriptor is left. */
#include "behaviour.h"

enum { FORKS = 150 };
static struct ends e;
static volatile sig_atomic_t copy = -1, strange;
static void acts(int sig) {
    int error = errno;
    if (copy >= 0) {
        strange += close(copy) != 0;
        copy = -1;
    } else {
        copy = dup(e.client);
        strange += copy < 0;
    }
    errno = error;
}
int main(void) {
    signal(SIGUSR1, acts);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    MUST(timer_create(CLOCK_MONOTONIC, &event, &timer));
    int good = 0, arrived_well = 0, ended_well = 0;
    for (int i = 0; i < FORKS; i++) {
        e = ends();
        struct itimerspec none = {{0, 0}, {0, 0}}, often = {{0, 30000}, {0, 1000 + 9973 * i % 300000}};
        MUST(timer_settime(timer, 0, &often, NULL));
        pid_t pid = MUST(fork());
        if (pid == 0) _exit(7);
        int status;
        while (waitpid(pid, &status, 0) == -1 && errno == EINTR) {}
        MUST(timer_settime(timer, 0, &none, NULL));
        if (copy >= 0) strange += close(copy) != 0;
        copy = -1;
        good += WIFEXITED(status) && WEXITSTATUS(status) == 7;
        char b[3] = {0};
        MUST(send(e.client, "abc", 3, 0));
        arrived_well += recv(e.server, b, 3, MSG_WAITALL) == 3 && memcmp(b, "abc", 3) == 0;
        MUST(close(e.client));
        struct pollfd p = {e.server, POLLIN};
        ended_well += poll(&p, 1, 20000) == 1 && recv(e.server, b, 1, 0) == 0;
        close(e.server);
    }
    say("children %d, arrived %d, ended %d, strange %d", good, arrived_well, ended_well, (int)strange);
}
