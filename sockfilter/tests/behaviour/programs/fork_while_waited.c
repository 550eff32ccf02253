/* Threads wait for connections in poll, select and recv while the process forks; the child sends the data that they wait for. */
#include "behaviour.h"

static struct ends connection[3];
static pid_t thread_of[3];
static char got[3];

static void *waits(void *argument) {
    long which = (long)argument;
    int fd = connection[which].client;
    thread_of[which] = syscall(SYS_gettid);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    struct timeval long_time = {10, 0};
    if (which == 0) MUST(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 10000));
    if (which == 1) MUST(select(fd + 1, &set, NULL, NULL, &long_time));
    MUST(recv(fd, &got[which], 1, 0));
    return NULL;
}

int main(void) {
    pthread_t threads[3];
    for (long i = 0; i < 3; i++) connection[i] = ends();
    for (long i = 0; i < 3; i++) MUST(pthread_create(&threads[i], NULL, waits, (void *)i) ? -1 : 0);
    for (int i = 0; i < 3; i++) {
        while (!*(volatile pid_t *)&thread_of[i]) sched_yield();
        await_asleep(thread_of[i]);
    }
    pid_t child = MUST(fork());
    if (child == 0) {
        for (int i = 0; i < 3; i++) MUST(send(connection[i].server, "abc" + i, 1, 0));
        _exit(0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        say("%c", got[i]);
    }
    MUST(waitpid(child, NULL, 0));
}
