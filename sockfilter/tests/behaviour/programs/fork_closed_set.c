/* An epoll set is closed while a thread waits on it: a child that is forked meanwhile has nothing of it. */
#include "behaviour.h"
#include <dirent.h>

static int q;
static void *waits(void *unused) {
    struct epoll_event v;
    this_thread();
    epoll_wait(q, &v, 1, -1);
    return NULL;
}
static int descriptors_of_child(void) {
    int channel[2], count = 0;
    MUST(pipe(channel));
    pid_t pid = MUST(fork());
    if (pid == 0) {
        DIR *d = opendir("/proc/self/fd");
        while (readdir(d)) count++;
        write(channel[1], &count, sizeof count);
        _exit(0);
    }
    MUST(read(channel[0], &count, sizeof count));
    MUST(waitpid(pid, NULL, 0));
    close(channel[0]), close(channel[1]);
    return count;
}
int main(void) {
    int before = descriptors_of_child();
    struct ends e = ends();
    q = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLIN};
    MUST(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    MUST(epoll_ctl(q, EPOLL_CTL_ADD, e.client, &v));
    pthread_t t;
    pthread_create(&t, NULL, waits, NULL);
    await_thread_asleep();
    TRY(close(q));
    say("%d more", descriptors_of_child() - before);
    send(e.client, "x", 1, 0);
    pthread_join(t, NULL);
    say("%d more", descriptors_of_child() - before);
}
