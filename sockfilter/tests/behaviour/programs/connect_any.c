/* The unspecified address is this host. */
#include "behaviour.h"

int main(void) {
    int s = listener(), c = MUST(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in a = where(s);
    a.sin_addr.s_addr = INADDR_ANY;
    TRY(connect(c, (struct sockaddr *)&a, sizeof a));
    socklen_t len = sizeof a;
    TRY(getpeername(c, (struct sockaddr *)&a, &len));
    char text[32];
    say("%s", inet_ntop(AF_INET, &a.sin_addr, text, sizeof text));
    TRY(accept(s, NULL, NULL) >= 0);
}
