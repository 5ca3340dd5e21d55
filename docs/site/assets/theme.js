// Before anything is drawn: what the reader chose; else the system decides.
try{const t=localStorage.getItem("theme");if(t)document.documentElement.dataset.theme=t}catch{}
