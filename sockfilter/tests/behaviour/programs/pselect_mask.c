/* pselect lets a blocked signal in while it waits; sets are left alone when it fails. */
#include "behaviour.h"

static volatile int seen;
static void count(int s) { seen++; }
int main(void) {
    struct ends e = ends();
    sigset_t one, none;
    sigemptyset(&none);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    struct sigaction a = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &a, NULL);
    sigprocmask(SIG_BLOCK, &one, NULL);
    raise(SIGUSR1);
    fd_set r;
    FD_ZERO(&r);
    FD_SET(e.server, &r);
    TRY(pselect(e.server + 1, &r, NULL, NULL, NULL, &none));
    say("seen %d, set %d", seen, FD_ISSET(e.server, &r) != 0);
    struct timespec fine = {0, 20300000};
    double t = seconds();
    TRY(pselect(e.server + 1, &r, NULL, NULL, &fine, NULL));
    say("%s %ld", took(t, 0.0203), fine.tv_nsec);
}
