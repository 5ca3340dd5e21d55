package mps

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
)

// Ask is the front end: it sends the daemon the lines of in as commands and prints what
// it answers. ErrNotFound says that there is no daemon.
func Ask(o Options, in io.Reader, out io.Writer) error {
	conn, err := net.Dial("unix", o.socket())
	if err != nil {
		return ErrNotFound
	}
	defer conn.Close()
	answers := json.NewDecoder(conn)
	requests := json.NewEncoder(conn)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		line := lines.Text()
		if err := requests.Encode(Request{Command: &line}); err != nil {
			return fmt.Errorf("the connection to the MPS control daemon is broken: %w", err)
		}
		var reply Reply
		if err := answers.Decode(&reply); err != nil {
			return fmt.Errorf("the connection to the MPS control daemon is broken: %w", err)
		}
		if _, err := io.WriteString(out, reply.Output); err != nil {
			return err
		}
	}
	return nil
}
