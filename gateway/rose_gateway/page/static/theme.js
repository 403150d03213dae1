// Before the first paint: the colours that were chosen in this browser, else those of the system.
document.documentElement.dataset.theme = localStorage.getItem("rose-theme") ?? "";
