/* A signal handler closes and dups sockets while the program forks: nothing waits for ever, in parent or child. */
#include "behaviour.h"

enum { FORKS = 150 };
static struct ends e;
static volatile sig_atomic_t copy = -1, strange, acted;
static void acts(int sig) {
    int error = errno;
    if (copy >= 0) {
        strange += close(copy) != 0;
        copy = -1;
    } else {
        copy = dup(e.client);
        strange += copy < 0;
    }
    acted++;
    errno = error;
}
int main(void) {
    e = ends();
    signal(SIGUSR1, acts);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    MUST(timer_create(CLOCK_MONOTONIC, &event, &timer));
    int good = 0, exchanged = 0;
    for (int i = 0; i < FORKS; i++) {
        struct itimerspec often = {.it_value.tv_nsec = 1000 + 9973 * i % 300000, .it_interval.tv_nsec = 150000};
        MUST(timer_settime(timer, 0, &often, NULL));
        pid_t pid = MUST(fork());
        if (pid == 0) _exit(7);
        int status;
        while (waitpid(pid, &status, 0) == -1 && errno == EINTR) {}
        good += WIFEXITED(status) && WEXITSTATUS(status) == 7;
        char b[4] = {0};
        exchanged += write(e.client, "abc", 4) == 4 && recv(e.server, b, 4, MSG_WAITALL) > 0;
    }
    MUST(timer_settime(timer, 0, &(struct itimerspec){{0, 0}, {0, 0}}, NULL));
    if (copy >= 0) close(copy);
    say("children %d, exchanged %d, strange %d", good, exchanged, (int)strange);
    TRY(close(e.client));
    char b;
    TRY(recv(e.server, &b, 1, 0));
}
