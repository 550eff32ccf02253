import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import javax.tools.ToolProvider;

import uk.co.real_logic.sbe.generation.java.JavaGenerator;
import uk.co.real_logic.sbe.generation.java.JavaOutputManager;
import uk.co.real_logic.sbe.ir.Ir;
import uk.co.real_logic.sbe.ir.Signal;
import uk.co.real_logic.sbe.ir.Token;
import uk.co.real_logic.sbe.xml.IrGenerator;
import uk.co.real_logic.sbe.xml.ParserOptions;
import uk.co.real_logic.sbe.xml.XmlSchemaParser;

/** A schema, and the codecs that sbe-tool generates for it, called by reflection. */
final class Codecs {
    private static ClassLoader loader;
    final Ir ir;
    final Map<String, List<Token>> messages = new HashMap<>();

    private Codecs(final Ir ir) {
        this.ir = ir;
        for (final List<Token> tokens : ir.messages()) {
            messages.put(tokens.get(0).name(), tokens);
        }
    }

    /** Generates and compiles the codecs of all schemas in a folder. */
    static Map<String, Codecs> load(final Path schemas, final Path work) throws Exception {
        final Map<String, Codecs> all = new HashMap<>();
        final Path sources = work.resolve("src");
        Files.createDirectories(sources);
        final List<Path> files;
        try (Stream<Path> found = Files.list(schemas)) {
            files = found.filter(file -> file.toString().endsWith(".xml")).sorted().toList();
        }
        for (final Path file : files) {
            final ParserOptions options = ParserOptions.builder().stopOnError(true).warningsFatal(false).build();
            try (var in = Files.newInputStream(file)) {
                final Ir ir = new IrGenerator().generate(XmlSchemaParser.parse(in, options));
                final var output = new JavaOutputManager(sources.toString(), ir.applicableNamespace());
                new JavaGenerator(ir, "org.agrona.MutableDirectBuffer", "org.agrona.DirectBuffer", false, false, false,
                    output).generate();
                all.put(file.getFileName().toString().replace(".xml", ""), new Codecs(ir));
            }
        }
        compile(sources, work);
        loader = new URLClassLoader(new URL[]{work.resolve("classes").toUri().toURL()}, Codecs.class.getClassLoader());
        return all;
    }

    private static void compile(final Path sources, final Path work) throws Exception {
        final List<String> arguments = new ArrayList<>(List.of("-nowarn", "-proc:none", "-d", work.resolve("classes").toString()));
        Files.createDirectories(work.resolve("classes"));
        try (Stream<Path> found = Files.walk(sources)) {
            found.map(Path::toString).filter(file -> file.endsWith(".java")).forEach(arguments::add);
        }
        if (ToolProvider.getSystemJavaCompiler().run(null, null, null, arguments.toArray(new String[0])) != 0) {
            throw new IllegalStateException("the generated codecs do not compile");
        }
    }

    List<Token> message(final String name) {
        final List<Token> tokens = messages.get(name);
        if (tokens == null) {
            throw new IllegalArgumentException("no message " + name);
        }
        return tokens;
    }

    Object make(final String name) throws Exception {
        return Class.forName(ir.applicableNamespace() + "." + name, true, loader).getConstructor().newInstance();
    }

    /** Calls a method by name and number of arguments; numbers are converted to the parameters' types. */
    static Object call(final Object on, final String name, final Object... arguments) throws Exception {
        return callAs(on.getClass(), on, name, arguments);
    }

    static Object callAs(final Class<?> type, final Object on, final String name, final Object... arguments)
        throws Exception {
        for (final Method method : type.getMethods()) {
            final Class<?>[] parameters = method.getParameterTypes();
            if (!method.getName().equals(name) || parameters.length != arguments.length) {
                continue;
            }
            final Object[] converted = new Object[arguments.length];
            boolean fits = true;
            for (int i = 0; i < arguments.length && fits; i++) {
                converted[i] = convert(arguments[i], parameters[i]);
                fits = converted[i] != null;
            }
            if (fits) {
                try {
                    return method.invoke(on, converted);
                } catch (final InvocationTargetException error) {
                    throw new IllegalStateException(type.getSimpleName() + "." + name, error.getCause());
                }
            }
        }
        throw new NoSuchMethodException(type.getSimpleName() + "." + name + "/" + arguments.length);
    }

    private static Object convert(final Object value, final Class<?> type) {
        if (value instanceof Number number && type.isPrimitive()) {
            if (type == byte.class) {
                return number.byteValue();
            } else if (type == short.class) {
                return number.shortValue();
            } else if (type == int.class) {
                return number.intValue();
            } else if (type == long.class) {
                return number.longValue();
            } else if (type == float.class) {
                return number.floatValue();
            } else if (type == double.class) {
                return number.doubleValue();
            }
            return null;
        }
        if (value instanceof Boolean) {
            return type == boolean.class ? value : null;
        }
        return type.isInstance(value) ? value : null;
    }

    /** A member of a message, group or composite: its first token, and the tokens of its type. */
    record Member(Token token, Token type, List<Token> tokens) {
        String name() {
            return token.name();
        }

        boolean isOptional() {
            return token.isOptionalEncoding() || type.isOptionalEncoding();
        }

        boolean isConstant() {
            return token.isConstantEncoding() || type.isConstantEncoding();
        }
    }

    /** The members within a message, group or entry (their own tokens first and last), or a composite. */
    static List<Member> members(final List<Token> tokens) {
        final List<Member> members = new ArrayList<>();
        final boolean group = tokens.get(0).signal() == Signal.BEGIN_GROUP;
        // The dimension of a group comes first.
        int at = group ? 1 + tokens.get(1).componentTokenCount() : 1;
        while (at < tokens.size() - 1) {
            final Token token = tokens.get(at);
            final int count = token.componentTokenCount();
            final Token type = token.signal() == Signal.BEGIN_FIELD ? tokens.get(at + 1) : token;
            final List<Token> inner = token.signal() == Signal.BEGIN_FIELD
                ? tokens.subList(at + 1, at + count - 1) : tokens.subList(at, at + count);
            members.add(new Member(token, type, inner));
            at += count;
        }
        return members;
    }

}
