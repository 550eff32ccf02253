/* Waits on a set that is in another end by signals and cancellation, as others do. */
#include "behaviour.h"

static int inner, outer;
static volatile int handled;
static void handler(int s) { handled++; }
static void *signals(void *unused) {
    await_thread_asleep();
    syscall(SYS_tgkill, getpid(), registered_thread, SIGUSR1);
    return NULL;
}
static void cleaned(void *unused) { say("cleaned up"); }
static void *waits(void *set) {
    struct epoll_event got[4];
    this_thread();
    pthread_cleanup_push(cleaned, NULL);
    epoll_wait(*(int *)set, got, 4, -1);
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void) {
    struct ends e = ends();
    inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLIN}, got[4];
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, e.server, &v));
    TRY(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
    struct sigaction a = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &a, NULL);
    int sets[] = {inner, outer};
    sigset_t blocked, none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    for (int i = 0; i < 2; i++) {
        pthread_t t;
        void *end;
        this_thread();
        pthread_create(&t, NULL, signals, NULL);
        TRY(epoll_wait(sets[i], got, 4, -1));
        pthread_join(t, NULL);
        say("%d", handled);
        pthread_sigmask(SIG_BLOCK, &blocked, NULL);
        raise(SIGUSR1);
        TRY(epoll_wait(sets[i], got, 4, 10));
        say("%d", handled);
        TRY(epoll_pwait(sets[i], got, 4, -1, &none));
        say("%d", handled);
        pthread_sigmask(SIG_UNBLOCK, &blocked, NULL);
        registered_thread = 0;
        pthread_create(&t, NULL, waits, &sets[i]);
        await_thread_asleep();
        pthread_cancel(t);
        pthread_join(t, &end);
        say("%d", end == PTHREAD_CANCELED);
    }
    send(e.client, "x", 1, 0);
    TRY(epoll_wait(outer, got, 4, -1));
    TRY(epoll_wait(inner, got, 4, -1));
}
