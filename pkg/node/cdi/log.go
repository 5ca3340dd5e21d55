package cdi

import (
	"fmt"

	"k8s.io/klog/v2"
)

// logAdapter gives nvcdi's messages the driver's logger. Most of its warnings
// are about optional files that a server has no use for, so they are details.
type logAdapter struct{ log klog.Logger }

func (l logAdapter) Tracef(format string, args ...any) { l.at(6, format, args) }
func (l logAdapter) Debugf(format string, args ...any) { l.at(6, format, args) }
func (l logAdapter) Infof(format string, args ...any)  { l.at(5, format, args) }

func (l logAdapter) Warningf(format string, args ...any) { l.at(4, format, args) }
func (l logAdapter) Errorf(format string, args ...any)   { l.at(2, format, args) }

func (l logAdapter) at(level int, format string, args []any) {
	if log := l.log.V(level); log.Enabled() {
		log.Info("nvcdi: " + fmt.Sprintf(format, args...))
	}
}
