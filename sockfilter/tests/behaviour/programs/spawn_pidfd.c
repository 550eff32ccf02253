/* pidfd_spawn gives a child a connection as posix_spawn does; where the C library has none (before 2.39), nobody has. */
#include "behaviour.h"
#include <dlfcn.h>
#include <spawn.h>

extern char **environ;
typedef typeof(posix_spawn) Spawn;

static void echoes(Spawn *spawn) {
    struct ends e = ends();
    int child, status;
    char *arguments[] = {"cat", NULL}, b[8] = {0};
    MUST(fcntl(e.client, F_SETFD, FD_CLOEXEC));
    MUST(fcntl(e.server, F_SETFD, FD_CLOEXEC));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, e.server, 0);
    posix_spawn_file_actions_adddup2(&actions, e.server, 1);
    say("spawned: %d", spawn(&child, "/bin/cat", &actions, NULL, arguments, environ));
    posix_spawn_file_actions_destroy(&actions);
    close(e.server);
    MUST(send(e.client, "echo", 4, 0));
    MUST(shutdown(e.client, SHUT_WR));
    TRY(recv(e.client, b, 8, MSG_WAITALL));
    say("%s", b);
    MUST(wait(&status));
    TRY(status);
    close(e.client);
}
int main(void) {
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    echoes(posix_spawn);
    for (int by_path = 0; by_path < 2; by_path++) {
        const char *name = by_path ? "pidfd_spawnp" : "pidfd_spawn";
        Spawn *here = (Spawn *)dlsym(RTLD_DEFAULT, name);
        char *arguments[] = {"true", NULL};
        int child;
        if (dlsym(libc, name)) echoes(here);
        else if (!here || here(&child, "/bin/true", NULL, NULL, arguments, environ) == ENOSYS) echoes(posix_spawn);
        else say("there is none, and it did something");
    }
}
