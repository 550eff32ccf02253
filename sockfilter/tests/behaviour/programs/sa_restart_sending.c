/* A handler with SA_RESTART: a call that has sent nothing continues, one that has sent something returns how much. */
#include "behaviour.h"

static volatile int seen;
static struct ends e;
static long before;
static int pipes[2];
static pthread_t waiter;
static void count(int sig) { seen++; }
static void *acts(void *restarts) {
    await_thread_asleep();
    pthread_kill(waiter, SIGUSR1);
    while (!seen) sched_yield();
    if (!restarts) return NULL;
    await_thread_asleep();
    if (pipes[1]) write(pipes[1], "pipe", 4);
    else drain(e.server, before);
    return NULL;
}
static char much[16 << 20];
static void report(const char *what, long n) {
    say("%s: %s", what, n == sizeof much ? "all" : n > 0 ? "some" : n == 0 ? "none" : strerrorname_np(errno));
}
int main(void) {
    struct sigaction a = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &a, NULL);
    waiter = pthread_self();
    this_thread();
    struct iovec part = {much, sizeof much};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    int file = MUST(open("file", O_RDWR | O_CREAT, 0600));
    MUST(ftruncate(file, sizeof much));
    off_t from = 0;
    for (int way = 0; way < 8; way++) {
        e = ends();
        before = way < 3 ? stuff(e.client) : 0;
        seen = 0;
        pthread_t t;
        pthread_create(&t, NULL, acts, (void *)(long)(way < 3));
        switch (way) {
        case 0: TRY(write(e.client, much, 1)); break;
        case 1: TRY(sendmsg(e.client, &(struct msghdr){.msg_iov = &(struct iovec){much, 9}, .msg_iovlen = 1}, 0)); break;
        case 2: TRY(sendfile(e.client, file, &from, 7)); break;
        case 3: report("send", send(e.client, much, sizeof much, 0)); break;
        case 4: report("writev", writev(e.client, &part, 1)); break;
        case 5: report("sendmsg", sendmsg(e.client, &message, 0)); break;
        case 6: from = 0, report("sendfile", sendfile(e.client, file, &from, sizeof much)); break;
        case 7:
            MUST(send(e.server, much, 3, 0));
            arrived(e.client, 3);
            TRY(recv(e.client, much, 9, MSG_WAITALL));
        }
        pthread_join(t, NULL);
        close(e.client), close(e.server);
    }
    /* splice waits for the pipe. */
    e = ends();
    MUST(pipe(pipes));
    seen = 0;
    pthread_t t;
    pthread_create(&t, NULL, acts, (void *)1L);
    TRY(splice(pipes[0], NULL, e.client, NULL, 4096, 0));
    pthread_join(t, NULL);
}
