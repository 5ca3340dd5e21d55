package bugreport

import "regexp"

// redacted stands for what looks like a secret. None is gathered on purpose; it is for those that were
// put where none belongs, such as into a flag or the address of a proxy.
const redacted = "REDACTED"

// secretName is that of a value that is not shown.
var secretName = regexp.MustCompile(`(?i)(token|passw(or)?d|secret|credential|api[-_]?key|authorization|private[-_]?key|cookie)s?$`)

// secrets are replaced in every text, each by its words.
var secrets = []struct {
	form *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`), redacted},
	{regexp.MustCompile(`\beyJ[\w-]+\.[\w-]+\.[\w-]*`), redacted},                  // JSON Web Tokens (RFC 7519)
	{regexp.MustCompile(`\b(AKIA|ASIA)[0-9A-Z]{16}\b`), redacted},                  // key IDs of AWS
	{regexp.MustCompile(`://[^/\s@]+@`), "://" + redacted + "@"},                   // user and password (RFC 3986, 3.2.1)
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[\w.~+/=-]+`), "${1} " + redacted}, // RFC 6750, RFC 7617
	{regexp.MustCompile(`(?i)([\w-]*(?:token|passw(?:or)?d|secret|credential|api[-_]?key|authorization|private[-_]?key|cookie)["']?\s*[:=]\s*["']?)[^\s"',;&]+`), "${1}" + redacted},
}

func redact(text string) string {
	for _, secret := range secrets {
		text = secret.form.ReplaceAllString(text, secret.by)
	}
	return text
}

// withoutSecrets is a value as encoding/json decodes it, less what looks like a secret.
func withoutSecrets(value any) any {
	switch value := value.(type) {
	case string:
		return redact(value)
	case []any:
		for i := range value {
			value[i] = withoutSecrets(value[i])
		}
	case map[string]any:
		shown := make(map[string]any, len(value))
		for name, held := range value {
			if text, isText := held.(string); isText && text != "" && secretName.MatchString(name) {
				held = redacted
			}
			shown[redact(name)] = withoutSecrets(held)
		}
		return shown
	}
	return value
}
