/* shutdown of what is not connected. */
// differs: shutdown(e.client, SHUT_RDWR): ENOTCONN | shutdown(e.client, SHUT_RDWR) = 0 | whether both ends have confirmed is known to the proxy only
#include "behaviour.h"

int main(void) {
    int s = socket(AF_INET, SOCK_STREAM, 0);
    TRY(shutdown(s, SHUT_RDWR));
    TRY(shutdown(s, 9));
    struct ends e = ends();
    char b;
    close(e.server);
    TRY(recv(e.client, &b, 1, 0));
    TRY(shutdown(e.client, SHUT_WR));
    ended(e.client);
    TRY(shutdown(e.client, SHUT_RDWR));
}
