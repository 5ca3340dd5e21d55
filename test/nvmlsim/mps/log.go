package mps

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// journal is a log file in the real daemon's format.
type journal struct {
	mu   sync.Mutex
	file *os.File
}

func openJournal(dir, name string) (*journal, error) {
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	return &journal{file: file}, nil
}

// say adds a line of the process that has the role. A log that cannot be written
// stops nothing.
func (j *journal) say(role string, pid int, format string, arguments ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now().Format("2006-01-02 15:04:05.000")
	fmt.Fprintf(j.file, "[%s %s %5d] %s\n", now, role, pid, fmt.Sprintf(format, arguments...))
}
