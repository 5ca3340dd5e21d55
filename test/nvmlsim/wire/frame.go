package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
)

// ProtocolVersion is raised with every change of the format or of a signature
// in Functions; library and daemon refuse each other if they differ.
const ProtocolVersion = 4

const (
	libraryMagic = "NVMLSIM\x00"
	controlMagic = "NVMLCTL\x00"
)

// allVisible is the count of visible GPUs that stands for all of them.
const allVisible = 0xffff

const libraryVersionSize = 32

type sessionID [16]byte

// hello introduces a connection: the magic, u8 protocol version, u8 opens,
// u16 number of visible minors, u32 process ID, the session's 16 random bytes,
// u32 number of capability devices, 32 bytes of the library's version with zeros at the
// end, and a u32 for the minor of each of both.
type hello struct {
	version uint8
	// opens asks for a new session; else the session must exist.
	opens   bool
	visible Visible
	pid     uint32
	session sessionID
}

func decodeHello(frame []byte) (hello, error) {
	r := &reader{rest: frame}
	if string(r.take(len(libraryMagic))) != libraryMagic {
		return hello{}, errors.New("a client does not speak the simulator's protocol")
	}
	h := hello{version: r.u8(), opens: r.u8() != 0}
	if h.version != ProtocolVersion && !r.short {
		// What other versions say is not known; the version itself is answered.
		return h, nil
	}
	visible := r.u16()
	h.pid = r.u32()
	copy(h.session[:], r.take(len(h.session)))
	capabilities := r.u32()
	h.visible.Library = string(bytes.TrimRight(r.take(libraryVersionSize), "\x00"))
	h.visible.All = visible == allVisible
	if !h.visible.All {
		h.visible.Minors = r.minors(uint32(visible))
	}
	h.visible.Capabilities = r.minors(capabilities)
	if r.short || len(r.rest) != 0 {
		return hello{}, fmt.Errorf("a client's introduction of %d bytes is malformed", len(frame))
	}
	return h, nil
}

// minors reads that many minor numbers and sorts them.
func (r *reader) minors(count uint32) []int {
	var minors []int
	for range count {
		if r.short {
			break
		}
		minors = append(minors, int(r.u32()))
	}
	slices.Sort(minors)
	return minors
}

// readFrame reads one frame. It is io.EOF if the peer has gone between frames.
func readFrame(r io.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	size := binary.NativeEndian.Uint32(length[:])
	if size == 0 || size > MaxFrame {
		return nil, fmt.Errorf("a frame of %d bytes is not between 1 and %d", size, MaxFrame)
	}
	frame := make([]byte, size)
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, fmt.Errorf("a frame of %d bytes is cut short: %w", size, err)
	}
	return frame, nil
}

func writeFrame(w io.Writer, frame []byte) error {
	if len(frame) > MaxFrame {
		return fmt.Errorf("a frame of %d bytes is larger than %d", len(frame), MaxFrame)
	}
	_, err := w.Write(append(binary.NativeEndian.AppendUint32(nil, uint32(len(frame))), frame...))
	return err
}

// isReset: the peer was killed with bytes of ours unread.
func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
