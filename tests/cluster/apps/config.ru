# Serves the folder WWW and digests what is posted: an application for puma.
require "digest"

run lambda { |env|
  if env["REQUEST_METHOD"] == "GET"
    body = File.binread(File.join(ENV.fetch("WWW"), File.basename(env["PATH_INFO"])))
  else
    digest = Digest::SHA256.new
    while (part = env["rack.input"].read(1 << 16))
      digest << part
    end
    body = digest.hexdigest
  end
  [200, { "content-length" => body.bytesize.to_s }, [body]]
}
