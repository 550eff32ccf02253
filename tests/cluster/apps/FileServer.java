import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.concurrent.Executors;

/** Serves a folder by Java's own HttpServer, and digests what is posted: FileServer.java PORT FOLDER. */
public class FileServer {
    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[1]);
        HttpServer server = HttpServer.create(new InetSocketAddress("0.0.0.0", Integer.parseInt(arguments[0])), 100);
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.createContext("/", exchange -> answer(exchange, folder));
        server.start();
    }

    static void answer(HttpExchange exchange, Path folder) throws IOException {
        byte[] body;
        int status = 200;
        if (exchange.getRequestMethod().equals("POST")) {
            body = digest(exchange);
        } else {
            Path file = folder.resolve(Path.of(exchange.getRequestURI().getPath()).getFileName());
            status = Files.exists(file) ? 200 : 404;
            body = status == 200 ? Files.readAllBytes(file) : new byte[0];
        }
        if ("close".equalsIgnoreCase(exchange.getRequestHeaders().getFirst("Connection"))) {
            // The server closes the connection, and does not announce it by itself.
            exchange.getResponseHeaders().set("Connection", "close");
        }
        exchange.sendResponseHeaders(status, body.length == 0 ? -1 : body.length);
        exchange.getResponseBody().write(body);
        exchange.close();
    }

    static byte[] digest(HttpExchange exchange) throws IOException {
        try {
            MessageDigest hash = MessageDigest.getInstance("SHA-256");
            byte[] part = new byte[1 << 16];
            for (int n; (n = exchange.getRequestBody().read(part)) > 0; ) {
                hash.update(part, 0, n);
            }
            return HexFormat.of().formatHex(hash.digest()).getBytes();
        } catch (java.security.NoSuchAlgorithmException error) {
            throw new IOException(error);
        }
    }
}
